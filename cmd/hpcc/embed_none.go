//go:build !entry

package main

// embeddedEntry is empty in an hpcc that make did not build.
const embeddedEntry = ""
