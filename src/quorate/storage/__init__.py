"""Storage: the files of a log that survive a crash, and the steps that write and open them."""
