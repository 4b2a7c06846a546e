"""The system call filter: a policy as data, compiled to classic BPF or to an OCI profile."""
