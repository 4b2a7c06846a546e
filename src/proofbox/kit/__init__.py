"""Small helpers that know nothing of sandboxes."""
