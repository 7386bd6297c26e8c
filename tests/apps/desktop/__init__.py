# SPDX-License-Identifier: MIT
"""What runs in a desktop's container, and is asked from outside."""
