"""What goes over a socket, as bytes. Sans-IO: nothing here opens, waits or counts time."""
