package attest

import (
	"encoding/json"
	"io"
	"net/url"
	"os"
	"strings"
)

// conda reads conda's record of an installed package, a file in conda-meta.
func (in *inventory) conda(p string, f *os.File) error {
	var r struct {
		Name, Version, Build, Channel, Subdir, URL, FN, MD5, SHA256 string
		License                                                     any // older packages have a list
	}
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r); err != nil {
		return err
	}
	kind := ""
	for _, k := range []string{"conda", "tar.bz2"} {
		if strings.HasSuffix(r.FN, "."+k) || strings.HasSuffix(r.URL, "."+k) {
			kind = k
		}
	}
	license, _ := r.License.(string)
	in.add(software{
		kind: "conda", name: r.Name, version: r.Version, license: license, download: r.URL, record: p,
		sums: digests("SHA256", r.SHA256, "MD5", r.MD5),
		purl: PURL("conda", "", strings.ToLower(r.Name), r.Version,
			"build", r.Build, "channel", channelName(r.Channel, r.Subdir), "subdir", r.Subdir, "type", kind),
	})
	return nil
}

// channelName returns the short name of a channel of anaconda.org, or else its address. A
// local directory has no name.
func channelName(channel, subdir string) string {
	u, err := url.Parse(channel)
	if err != nil || u.Scheme == "file" || strings.HasPrefix(channel, "<") || strings.HasPrefix(channel, "/") {
		return ""
	}
	u.User, u.RawQuery = nil, ""
	if subdir != "" {
		u.Path = strings.TrimSuffix(u.Path, "/"+subdir)
	}
	u.Path = strings.TrimSuffix(u.Path, "/noarch")
	switch u.Host {
	case "conda.anaconda.org":
		return strings.TrimPrefix(u.Path, "/")
	case "repo.anaconda.com":
		return strings.TrimPrefix(u.Path, "/pkgs/")
	}
	return u.String()
}
