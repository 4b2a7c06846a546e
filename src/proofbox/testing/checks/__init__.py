"""The checks, one file for each field; ``proofbox.testing.conformance`` exports all of them."""
