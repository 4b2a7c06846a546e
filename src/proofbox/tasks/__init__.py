"""Task sets: where tasks come from, and the files in which others hand in candidates."""
