"""The lab's ModelScope-compatible hub, with faults that tests can switch on."""
