"""The models that the lab's hub serves, made once on the machine that runs the lab."""
