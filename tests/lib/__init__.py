# SPDX-License-Identifier: MIT
"""The pieces that every stage of the test run uses."""
