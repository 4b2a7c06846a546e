"""The nouns: frozen values without I/O or a clock. What crosses a process or a disk is a msgspec ``Struct``."""
