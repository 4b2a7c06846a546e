"""``python -m proofbox.cli`` is ``proofbox``."""

from proofbox.cli import main

main()
