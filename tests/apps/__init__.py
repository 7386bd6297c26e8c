# SPDX-License-Identifier: MIT
"""Real programs."""
