"""The nouns: frozen values without I/O and without a clock. What crosses a process or a disk is a msgspec ``Struct``."""
