"""The version of this package, also in a checkout; the build reads it from here."""

PACKAGE_VERSION = "0.2.0"
