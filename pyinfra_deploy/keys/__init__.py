"""The control side's keys: API keys (as digests) and the certificate authority of an inventory."""
