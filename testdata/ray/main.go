// Command ray is a stand-in for Ray in tests. "ray start" starts a head that counts the
// workers that joined it, or a worker. "python3 -c" runs the program that waits for them.
// Like Ray, it leaves daemons behind that are not its children.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	args := os.Args[1:]
	switch {
	case filepath.Base(os.Args[0]) == "python3" && args[0] == "-c": // the program, ADDRESS, N
		for ; ask(args[2], "count") != args[3]; time.Sleep(100 * time.Millisecond) {
		}
	case args[0] == "count", args[0] == "die":
		fmt.Println(ask(os.Getenv("RAY_ADDRESS"), args[0]))
	case args[0] == "raylet":
		select {}
	case args[0] == "start":
		start(args[1:])
	default:
		fail("ray %s: not in the stand-in", args)
	}
}

func start(args []string) {
	fmt.Println("ray start", strings.Join(args, " "))
	option := map[string]string{}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		option[k] = v
	}
	raylet := exec.Command("/proc/self/exe", "raylet", os.Getenv("RAY_STUB_MARK"))
	raylet.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := raylet.Start(); err != nil {
		fail("%v", err)
	}
	if _, head := option["--head"]; head {
		lead(option)
	}
	if os.Getenv("RAY_STUB") == "worker-dies" {
		time.Sleep(time.Second)
		fail("boom in a worker")
	}
	c, err := net.Dial("tcp", option["--address"])
	if err != nil {
		fail("%v", err)
	}
	fmt.Fprintf(c, "join %s\n", token())
	_, _ = bufio.NewReader(c).ReadString('\n') // ends with the head
}

func lead(option map[string]string) {
	if os.Getenv("RAY_STUB") == "no-head" {
		fail("boom in the head")
	}
	l, err := net.Listen("tcp", net.JoinHostPort(option["--node-ip-address"], option["--port"]))
	if err != nil {
		fail("%v", err)
	}
	nodes := atomic.Int64{}
	nodes.Add(1)
	for {
		c, err := l.Accept()
		if err != nil {
			fail("%v", err)
		}
		go func() {
			defer c.Close()
			r := bufio.NewReader(c)
			line, _ := r.ReadString('\n')
			switch strings.TrimSpace(line) {
			case "join " + token():
				nodes.Add(1)
				_, _ = r.ReadString('\n')
				nodes.Add(-1)
			case "die " + token():
				fail("boom in the head, later")
			case "count " + token():
				fmt.Fprintln(c, nodes.Load())
			}
		}()
	}
}

// ask sends a command with the token to the head, and returns the response.
func ask(address, word string) string {
	c, err := net.Dial("tcp", address)
	if err != nil {
		fail("%v", err)
	}
	defer c.Close()
	fmt.Fprintf(c, "%s %s\n", word, token())
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

func token() string {
	b, err := os.ReadFile(os.Getenv("RAY_AUTH_TOKEN_PATH"))
	if err != nil || len(b) != 64 || os.Getenv("RAY_AUTH_MODE") != "token" {
		fail("no token: %v", err)
	}
	return string(b)
}

func fail(format string, a ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", a...)
	os.Exit(1)
}
