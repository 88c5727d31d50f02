"""The encoding of all bytes on a socket. Sans-IO: no module here opens, waits or counts time."""
