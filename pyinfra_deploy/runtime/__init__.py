"""`fleet runtime`: locks, wheels and runtimes, from the control machine."""
