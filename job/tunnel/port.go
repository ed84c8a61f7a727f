package tunnel

import (
	"context"
	"io"
)

// ToPort forwards a connection to a port of this machine until both directions have ended. If the port sent no data,
// ToPort calls why, and resets the connection if why returns an error.
func ToPort(ctx context.Context, conn Conn, port int, why func() error) error {
	to, err := dialLoopback(ctx, port)
	if err != nil {
		Reset(conn)
		return err
	}
	defer to.Close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(to, conn)
		_ = to.CloseWrite()
	}()
	n, err := io.Copy(conn, to)
	if n == 0 {
		if w := why(); w != nil {
			Reset(conn)
			<-over
			return w
		}
	}
	_ = conn.CloseWrite()
	<-over
	return err
}
