"""Values to bytes and back: strict, size-capped, no I/O. ``frames`` cuts a byte stream, ``guest`` has the messages."""
