"""Which class an exception belongs to: transient, permanent, bug and so on."""
