# SPDX-License-Identifier: MIT
"""The stages of a test run. Each module has tests(context), which yields (name, function): the function
gets a lib.report.Test, returns (perhaps with a note) if all is well and raises lib.report.Failure if not."""
