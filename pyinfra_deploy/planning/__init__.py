"""Pure decisions: settings and a snapshot in, a plan or refusals out. Nothing here does I/O."""
