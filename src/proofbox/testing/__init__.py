"""The conformance suite for authors of runtimes: public, and used by Proofbox on its own runtimes."""
