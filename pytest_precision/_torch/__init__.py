"""Every use of a private name of torch: why it is needed, and what would replace it.

A release of torch may change any of these names without notice, so only these modules use them,
each in a function of ours. No name is looked up before it is needed: ranks must also start with a
torch that lacks one.
"""
