"""What a host is. Each fact reads with one command and never changes anything."""
