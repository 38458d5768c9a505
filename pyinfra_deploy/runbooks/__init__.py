"""Procedures for a bad or a long day, one a file: what each does, its checks, and a dry run.

A file has RUNBOOK; registry.py lists the files. They are run by `fleet runbook run`, or on hosts of
pyinfra's choice by by_pyinfra.py. What they do to hosts is done by the commands that there are.
"""
