"""Virtual machines with a kernel of their own, run by QEMU."""
