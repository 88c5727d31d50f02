"""``verification.fuzz`` finds a decoder of the wire that is not careful enough.

Always in another process: it limits its own memory and sets alarms.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        ("messages._flag = bool", r"peer: AssertionError\('there is one encoding'\)"),
        ("requests.decode_name = lambda what, data: data.decode()", "request: UnicodeDecodeError"),
        ("requests._rows = lambda frame, start, layout, count: frame.control[start:]",
         "request: error"),
        ("handshake.decode_shape = lambda what, data, decoder: decoder.decode(data)",
         r"hello: (ValidationError|DecodeError)"),
        ("frames.Framer.waiting = 0", "call: AssertionError"),
    ],
    ids=["two encodings", "text", "rows", "shape", "lost bytes"],
)  # fmt: skip
def test_a_planted_mistake_is_found(planted: str, finding: str) -> None:
    script = (
        "import sys\n"
        "from verification import fuzz\n"
        "from quorate.wire import frames, handshake, messages, requests\n"
        f"{planted}\n"
        "sys.exit(fuzz.main())"
    )
    command = [sys.executable, "-c", script, "--frames", "20000", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(finding, done.stdout), done.stdout + done.stderr
    assert done.returncode == 1
