"""A short run of ``verification.fuzz``, and planted decoders that it must find.

Always in another process: it limits its own memory and sets alarms.
"""

from __future__ import annotations

import re
import subprocess
import sys
from random import Random

import pytest
from crc32c import crc32c

from quorate.storage.layout import decode_vote, encode_vote
from verification.exhaustive import IDENTITY, original
from verification.spoiling import seal, spoil

FRAMES = 60_000


def fuzz(*arguments: str, planted: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command, after ``planted`` was done to its module."""
    script = f"import sys\nfrom verification import fuzz\n{planted}\nsys.exit(fuzz.main())"
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def findings(done: subprocess.CompletedProcess[str]) -> int:
    last = done.stdout.splitlines()[-1]
    counts = re.fullmatch(r"fuzz: frames=(\d+) frames_per_s=\d+ findings=(\d+)", last)
    assert counts, done.stdout + done.stderr
    assert int(counts[1]) > 0
    return int(counts[2])


def test_nothing_that_decodes_crashes_hangs_or_takes_too_much() -> None:
    done = fuzz("--frames", str(FRAMES))
    assert findings(done) == 0, done.stdout
    assert done.returncode == 0


def test_every_kind_of_input_is_accepted_now_and_then_and_never_always() -> None:
    """Else the CRC would hide what is behind it, or nothing would be checked at all."""
    done = fuzz("--frames", "20000", "--seed", "1")
    rows = re.findall(r"^(\w+) +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
    assert len(rows) == 14
    for name, tried, accepted in rows:
        assert int(accepted) > 0, name
        assert int(accepted) < int(tried) or name == "segment", name


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("KeyError", "raise KeyError(len(data))"),
        ("IndexError", "return data[4096]"),
        ("MemoryError", "return bytearray(1 << 24)"),
        ("Hang", "while True: pass"),
    ],
    ids=["key", "index", "memory", "hang"],
)
def test_a_planted_decoder_is_found(name: str, body: str) -> None:
    """With a vote record that nobody can read well; each alarm costs some time, so few inputs."""
    planted = f"def bad(data, log):\n    {body}\nfuzz.decode_vote = bad\nfuzz.SECONDS_MAX = 0.2"
    done = fuzz("--frames", "100", "--jobs", "1", planted=planted)
    assert findings(done) > 0
    assert re.search(rf"vote: {name}", done.stdout), done.stdout
    assert done.returncode == 1


def test_a_sealed_input_passes_its_crc_and_a_blind_one_does_not() -> None:
    good = encode_vote(original("stopped").record, IDENTITY).rstrip(b"\0")
    random = Random(0)
    blind = sealed = 0
    for _ in range(500):
        data = spoil(good, random)
        blind += decode_vote(bytes(data), IDENTITY) is not None and data[: len(good)] != good
        if len(data) == len(good):
            seal(data, len(good) - 4, IDENTITY.seed)
            proof = int.from_bytes(data[-4:], "little")
            assert crc32c(bytes(data[:-4]), IDENTITY.seed) == proof
            sealed += decode_vote(bytes(data), IDENTITY) is not None
    assert blind == 0
    assert sealed > 100
