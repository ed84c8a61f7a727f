package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/job/site"
	"hpcc/job/tunnel"
	"hpcc/store"
	"hpcc/text"
)

const forwardUsage = "JOB[.TASK] PORT|NAME|LOCAL:PORT"

func forwardCommand() *cli.Command {
	return &cli.Command{
		Name: "forward", Usage: "forward a port of a task's node to this machine", ArgsUsage: forwardUsage,
		Description: `Forwards a local port to a port of the node on which a task runs, through the scheduler or ssh.
Waits until the task runs, and ends with it. NAME is "tensorboard", "jupyter" or a name of --port.

   hpcc forward main 8888
   hpcc forward main.3 jupyter
   hpcc forward main 16006:tensorboard
   hpcc forward --print main jupyter     # an ssh command for your laptop

LOCAL is a port, 0 for any free port, or the path of a Unix socket. Only your own processes and
root's can connect, unless --open is given. The program on the node must be yours or root's.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "print", Usage: "print the ssh command for your laptop and exit"},
			&cli.BoolFlag{Name: "open", Usage: "let every user of this machine connect"},
			&cli.IntFlag{Name: "as", Usage: "print the address with `PORT` (used by --print)"},
			viaFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object when ready"},
			storeFlag(),
		},
		Action: action(parseForward),
	}
}

func viaFlag() cli.Flag {
	return &cli.StringFlag{Name: "via", Usage: "reach the node by `ROUTE`: direct, ssh or a scheduler's name"}
}

type forwardArgs struct {
	task       string // JOB[.TASK]
	arg        string // PORT, NAME or LOCAL:PORT, as given
	f          dispatch.Forwarding
	print      bool // only print the ssh command
	open, json bool
	as         int // port on the laptop, with asSet
	asSet      bool
	via, store string
}

func parseForward(c *cli.Context) (*forwardArgs, error) {
	args, err := parseArguments(c, 2, 2, forwardUsage)
	if err != nil {
		return nil, err
	}
	f, err := dispatch.ParseForwarding(args[1])
	if err != nil {
		return nil, err
	}
	a := &forwardArgs{task: args[0], arg: args[1], f: f, print: c.Bool("print"), open: c.Bool("open"),
		json: c.Bool("json"), as: c.Int("as"), asSet: c.IsSet("as"),
		via: c.String("via"), store: c.String("store")}
	if a.open && (f.Socket != "" || a.print) {
		return nil, text.Usagef("--open is for ports: only the owner can connect to a socket")
	}
	return a, nil
}

func (a *forwardArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, index, err := site.FindTask(ctx, "forward", false, s.Jobs(), a.task)
	if err != nil {
		return err
	}
	if err := a.f.Resolve(sub.Job); err != nil {
		return err
	}
	if a.print {
		return a.printLine(s.Dir())
	}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP) // the ssh session has ended
		defer stop()
	}
	w, err := sub.Forward(ctx, s.Jobs(), index, a.f, a.via, a.open, sayLine)
	if errors.Is(err, context.Canceled) { // Ctrl-C
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	if err := a.announce(sub.ID, w); err != nil {
		return err
	}
	return w.Serve(ctx, &tunnel.Guard{Open: a.open, Advice: "; --open lets every user of this machine connect", Say: sayLine})
}

// announce prints the address of the port, on this machine and on a laptop.
func (a *forwardArgs) announce(id string, w *dispatch.Forward) error {
	t, service, route := w.Task, w.Service, w.Tunnel.Route
	local, at := w.Listener.Addr().String(), w.Listener.Addr().String()
	if s, ok := w.Listener.(*tunnel.Socket); ok {
		local = s.Path
		at = fmt.Sprintf("127.0.0.1:%d", cmp.Or(a.as, service.Port))
	}
	_, port, _ := net.SplitHostPort(at)
	url := service.At(at)
	ssh := fmt.Sprintf("ssh -N -L %s:%s %s", port, local, dispatch.Login())
	say("forwarding %s to port %d of %s for task %d of job %s (via %s); Ctrl-C ends it", local, service.Port, t.Host, t.Index, id, route)
	if !a.asSet {
		say("from a laptop: %s", ssh)
	}
	if a.json {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"type": "forward", "job": id,
			"task": t.Index, "host": t.Host, "port": service.Port,
			"local": local, "url": url, "ssh": ssh, "via": route})
	}
	if url == "" && a.asSet {
		url = at
	}
	_, err := fmt.Println(cmp.Or(url, local))
	return err
}

// printLine prints an ssh command for a laptop. dir is the directory of the store.
func (a *forwardArgs) printLine(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	line, err := a.f.Laptop(dir, a.via, a.task, a.arg)
	if err == nil {
		_, err = fmt.Println(line)
	}
	return err
}
