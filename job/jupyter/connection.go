package jupyter

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"syscall"

	"hpcc/files"
)

// channels are the members of a connection file that name ports, in the order of the sockets' numbers.
var channels = []string{"shell_port", "iopub_port", "stdin_port", "control_port", "hb_port"}

// A connection is the content of a connection file: the addresses of a kernel on this machine, and
// the key that signs its messages.
type connection struct {
	members map[string]any // all, also those that hpcc does not know
	ip      netip.Addr
	ports   []int // of channels
}

// maxFile limits the size of a connection file, in bytes.
const maxFile = 1 << 20

// readConnection reads the connection file that Jupyter wrote for a new kernel.
func readConnection(file string) (*connection, error) {
	b, err := files.ReadFile(file, maxFile)
	if err != nil {
		return nil, err
	}
	c, err := parseConnection(b)
	if err != nil {
		return nil, fmt.Errorf("connection file %s: %w", file, err)
	}
	return c, nil
}

func parseConnection(b []byte) (*connection, error) {
	c := &connection{}
	if err := json.Unmarshal(b, &c.members); err != nil {
		return nil, err
	}
	if t := c.members["transport"]; t != "tcp" {
		return nil, fmt.Errorf("transport %v; only tcp can be forwarded", t)
	}
	ip, _ := c.members["ip"].(string)
	var err error
	if c.ip, err = netip.ParseAddr(ip); err != nil || !c.ip.IsLoopback() {
		return nil, fmt.Errorf("ip %q is not a loopback address, and other machines must not reach the kernel", ip)
	}
	for _, name := range channels {
		n, ok := c.members[name].(float64)
		if !ok || n != math.Trunc(n) || n < 1 || n > 65535 {
			return nil, fmt.Errorf("%s is %v, not a port", name, c.members[name])
		}
		c.ports = append(c.ports, int(n))
	}
	return c, nil
}

// listen listens on the ports of the kernel, in the order that [remote.serve] numbers them.
func (c *connection) listen() ([]net.Listener, error) {
	var out []net.Listener
	for _, p := range c.ports {
		l, err := net.Listen("tcp", netip.AddrPortFrom(c.ip, uint16(p)).String())
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("port %d of %s, which Jupyter chose for the kernel, is in use by now", p, c.ip)
		}
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

func closeAll(list []net.Listener) {
	for _, l := range list {
		l.Close()
	}
}

// Names of the files in the directory of a kernel on its node.
const (
	connectionName = "connection.json"
	socketPrefix   = "kernel"
)

// socket returns the path of the kernel's socket for the channel of listener number i.
func socket(dir string, i int) string {
	return path.Join(dir, socketPrefix+"-"+strconv.Itoa(i+1))
}

// onNode returns the connection file for the kernel on its node, as one line. There it listens on
// sockets in its directory dir instead of ports, which every user of the node could connect to.
func (c *connection) onNode(dir string) ([]byte, error) {
	m := maps.Clone(c.members)
	m["transport"], m["ip"] = "ipc", path.Join(dir, socketPrefix)
	for i, name := range channels {
		m[name] = i + 1
	}
	return json.Marshal(m)
}

// starter is the shell script that runs a kernel as a task. $0 is the kernel's directory, which only
// the user can open; the arguments are the kernel's command. It waits for the connection file, and
// gives up when no client has come. The file pid holds what to send signals to: the process group of
// this shell, or the kernel alone where the group has other processes, as in pods. A signal that comes
// when the kernel has ended does not end the rm.
const starter = `mkdir -m 700 "$0" || exit
read -r _ _ _ _ group _ </proc/self/stat
n=0
until [ -s "$0/` + connectionName + `" ]; do
  n=$((n+1))
  [ $n -le 600 ] || { rm -rf "$0"; echo "no client has connected to the kernel" >&2; exit 1; }
  sleep 0.2
done
if [ "$group" = $$ ] && [ $$ != 1 ]; then
  trap : INT TERM HUP
  echo "-$$" >"$0/pid"
  "$@"
  status=$?
  trap '' INT TERM HUP
  rm -rf "$0"
  exit $status
fi
echo $$ >"$0/pid"
exec "$@"`

// TaskArgv returns the command of a task that runs the kernel with this argv in the directory dir of
// its node. file is the path of the client's connection file in argv.
func TaskArgv(dir, file string, argv []string) []string {
	out := []string{"sh", "-c", starter, dir}
	for _, a := range argv {
		out = append(out, strings.ReplaceAll(a, file, path.Join(dir, connectionName)))
	}
	return out
}
