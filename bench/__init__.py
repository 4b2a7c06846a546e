"""Side-by-side measurements: ours, the kernel's floor, and peers, in one run; ratios are what counts."""
