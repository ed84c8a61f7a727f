package attest

import "testing"

// TestPublicText removes credentials from URLs, and nothing else.
func TestPublicText(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"https://u:p@h/x", "https://h/x"}, {"https://tok@h/x", "https://h/x"}, {"ADD https://u:p%40@h/x http://:p@i:80/ /d", "ADD https://h/x http://i:80/ /d"},
		{"https://u:a@b@h/x", "https://h/x"}, {"https://u:p'q@h/x", "https://h/x"}, {"RUN git clone git+https://u:$TOKEN@h/x && y", "RUN git clone git+https://h/x && y"},
		{"https://u:\\\np@h/x\nb", "https://\\\nh/x\nb"}, {"https://u:`\r\np@h", "https://`\r\nh"}, {"https://u:pa/ss@h/x", "https://h/x"}, {`"ftp://u:p@h"`, `"ftp://h"`},
		{"https://h/a@b", "https://h/a@b"}, {"https://h:80/a@b", "https://h:80/a@b"}, {"https://h?x=a@b", "https://h?x=a@b"}, {"http://[::1]:80/a@b", "http://[::1]:80/a@b"},
		{"https://h b@c", "https://h b@c"}, {"https://h:$PORT/a@2x", "https://h:$PORT/a@2x"}, {"git@h:x", "git@h:x"}, {"ssh://git@h/x", "ssh://git@h/x"}, {"ssh://git:p@h/x", "ssh://h/x"},
		{"docker-image://busybox@sha256:00", "docker-image://busybox@sha256:00"}, {"oci-layout://d@sha256:00", "oci-layout://d@sha256:00"}, {"a@b", "a@b"}, {"", ""},
	} {
		if got := PublicText(c.text); got != c.want {
			t.Errorf("PublicText(%q) = %q; want %q", c.text, got, c.want)
		}
	}
}
