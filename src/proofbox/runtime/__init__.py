"""The runtime contract, and the registry that finds runtimes by name."""
