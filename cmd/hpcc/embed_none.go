//go:build !entry

package main

// embeddedEntry is empty where hpcc was not built by make.
const embeddedEntry = ""
