"""The service behind Nginx: API keys, and in mode `full` everything between Nginx and the engines.

Imports nothing from pyinfra_deploy. `python -m llm_gateway --socket PATH` serves
- GET /auth and /ready, when LLM_GATEWAY_CONFIG is not set (gateway.mode: direct): app.py;
- the API itself, when it names a configuration (gateway.mode: full): service.py.

LLM_GATEWAY_KEYS names the key files (keys.py has their shape), LLM_GATEWAY_CONFIG the
configuration. Both are looked at every half second and taken up without a restart; a new file that
cannot be used is refused in the log, in words, and the old one stays in force.

The configuration is one JSON object. What is not marked `required` may be left out; the value shown
is the default then. A field that is not known is refused.

    {"schema": 1,                         # required
     "backends": [                        # required, at least one
       {"name": "gpu01-main",             # required, unique; [A-Za-z0-9._-], in metrics and logs
        "url": "unix:/run/llm-engine-main/http.sock",     # required; or "https://HOST:PORT"
        "tls": null,                      # for https, and required there: {"ca": PATH,
                                          # "certificate": PATH, "key": PATH, "server_name": null}
        "models": ["Qwen/Qwen3-32B"],     # required: names that the engine serves
        "aliases": {},                    # other names, each to one of `models`
        "max_model_len": null,            # tokens; null: as the engine's /tokenize says
        "drain_flag": null,               # while this file exists: no new request
        "ready_path": null,               # for engines of other hosts: polled every second beside
                                          # the small completion; {"ready": bool, "draining": bool,
                                          # "serves": {"release": str, "model": str,
                                          # "max_model_len": int or null, "priority_scheduling":
                                          # bool}}; serves, where it is there, counts before
                                          # models, max_model_len and priority_scheduling here
        "priority_scheduling": false,     # the engine runs --scheduling-policy priority
        "max_concurrent": 256}],          # requests at the engine at once; others wait here
     "tiers": {"default": {"weight": 100, # in the queue; none gets less than 5% at saturation
                           "priority": 0}},   # vLLM's: smaller goes first
     "default_tier": "default",           # of keys without one, and with one that is not here
     "queue": {"max_waiting": 256,        # for the engines of one model; 0: none wait
               "max_wait_seconds": 60},
     "admission": {
       "max_body_bytes": 16777216,
       "body_seconds": 30,                # to receive a body
       "max_depth": 64,                   # nested arrays and objects
       "count_tokens": true,              # ask the engine's /tokenize before admitting
       "tokenize_seconds": 5,             # for its answer; then it is admitted without a count
       "expose_tokenize": false,          # pass POST /tokenize to clients
       "allowed_parameters": null,        # null: all; else names beside those always allowed
                                          # (admission.ALWAYS_ALLOWED)
       "maxima": {}},                     # name -> largest number; max_tokens stands for
                                          # max_completion_tokens and max_output_tokens too, and is
                                          # set where a request has none of them
     "affinity": {"prefix_bytes": 0,      # of the conversation; 0: off
                  "balance_factor": 1.25},    # the preferred engine's work against the mean's
     "health": {"interval_seconds": 15,   # 0: none but what requests tell
                "timeout_seconds": 10, "failures": 3,
                "open_seconds": 5, "max_open_seconds": 60},
     "timeouts": {"connect_seconds": 5,
                  "first_byte_seconds": 600,  # the engine's queue and prefill; of an answer that
                                          # is no stream all of it
                  "between_bytes_seconds": 300},
     "usage": {"kv_cache": false},        # kv_cache_usage_percent in usage and as a header
     "revoked_streams": "finish",         # or "end": answers of a key that is good no more end
     "auth": null,                        # or {"url": "https://...", "ca": null,
                                          # "connect_seconds": 2, "answer_seconds": 3}: who decides
                                          # about keys instead of the key files (outside_auth.py)
     "stop_seconds": 120}                 # answers may go on so long after SIGTERM, also those of
                                          # before a hand-over, which has no limit itself

The unit: ExecReload=kill -HUP $MAINPID hands over to a new worker, from the environment that
`current` names by then; no answer is cut and no request waits. TimeoutStopSec is to be above
stop_seconds. With a socket unit the service takes descriptor 3 (LISTEN_FDS) and needs no --socket.

For Nginx: pass Authorization, Content-Type, X-Request-Id and traceparent; take $llm_key_id from the
answer's X-Key-Id and hide it. Of what the service listens to only the API's paths and /health may
be passed: /ready, /metrics and /auth are for the host itself.
"""
