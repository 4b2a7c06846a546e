"""Linux itself: cgroups, id maps, seccomp, ownership of what is made. Knows nothing of sandboxes' contents."""
