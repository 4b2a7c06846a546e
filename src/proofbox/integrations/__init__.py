"""One file for each framework that can use Proofbox; each imports its framework, and nothing else imports them."""
