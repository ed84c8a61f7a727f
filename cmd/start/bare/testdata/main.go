// Command main has the entry point of hpcc and nothing else.
package main

import _ "hpcc/cmd/start/bare"

func main() {}
