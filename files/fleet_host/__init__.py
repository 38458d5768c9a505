"""The host program: everything that must happen on a GPU or gateway host itself.

Standard library only, shipped as one zipapp to {llm_root}/bin/fleet-host. Commands read one JSON
document on stdin and print one on stdout (see __main__.py).
"""

# State that this program leaves on a host (job specs, results, records) carries this number. A
# program that meets a higher one refuses instead of guessing what the newer one meant.
SCHEMA_VERSION = 1
