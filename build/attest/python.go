package attest

import (
	"encoding/json"
	"io"
	"os"
	"path"
	"strings"
)

// python reads the metadata of an installed Python distribution: METADATA in a .dist-info
// directory, PKG-INFO in an .egg-info directory, or an .egg-info file (Python packaging,
// "Core metadata", "Recording installed projects").
func (in *inventory) python(p string, f *os.File) error {
	first := true
	err := stanzas(headOnly(io.LimitReader(f, maxRecord)), func(c map[string]string) {
		if !first {
			return // the description
		}
		first = false
		name, version := c["name"], c["version"]
		s := software{
			kind: "pypi", name: name, version: version, license: c["license-expression"], home: c["home-page"], record: p,
			purl: PURL("pypi", "", strings.ReplaceAll(strings.ToLower(name), "_", "-"), version),
		}
		if s.license == "" && c["license"] != "UNKNOWN" {
			s.license = c["license"]
		}
		s.originator = c["author-email"]
		if a := c["author"]; a != "" && a != "UNKNOWN" {
			s.originator = a
		}
		s.download, s.sums = in.origin(path.Join(path.Dir(p), "direct_url.json"))
		in.add(s)
	})
	return err
}

// headOnly returns a reader that ends at the first empty line. The description follows that
// line, in any format.
func headOnly(r io.Reader) io.Reader { return &headReader{r: r, last: '\n'} }

type headReader struct {
	r    io.Reader
	last byte
	done bool
}

func (h *headReader) Read(p []byte) (int, error) {
	if h.done {
		return 0, io.EOF
	}
	n, err := h.r.Read(p)
	for i, c := range p[:n] {
		if c == '\n' && h.last == '\n' {
			h.done = true
			return i, nil
		}
		if c != '\r' {
			h.last = c
		}
	}
	return n, err
}

// origin returns the origin of a distribution that was not installed from an index (Python
// packaging, "Recording the direct URL origin"): its address, with the commit of a git
// repository, and the digests of its archive. p is the path of direct_url.json.
func (in *inventory) origin(p string) (address string, sums map[string]string) {
	f, err := openRegular(in.root, p)
	if err != nil {
		return "", nil
	}
	defer f.Close()
	return parseDirectURL(io.LimitReader(f, 1<<20))
}

func parseDirectURL(r io.Reader) (address string, sums map[string]string) {
	var d struct {
		URL     string `json:"url"`
		Archive struct {
			Hash   string            `json:"hash"`
			Hashes map[string]string `json:"hashes"`
		} `json:"archive_info"`
		VCS struct {
			VCS    string `json:"vcs"`
			Commit string `json:"commit_id"`
		} `json:"vcs_info"`
	}
	if json.NewDecoder(r).Decode(&d) != nil {
		return "", nil
	}
	if address = webAddress(d.URL); address != "" && d.VCS.VCS == "git" {
		address = webAddress("git+" + address + "@" + d.VCS.Commit)
	}
	if algorithm, sum, ok := strings.Cut(d.Archive.Hash, "="); ok && d.Archive.Hashes == nil {
		d.Archive.Hashes = map[string]string{algorithm: sum}
	}
	return address, digests("SHA256", d.Archive.Hashes["sha256"], "MD5", d.Archive.Hashes["md5"])
}

// digests returns the valid digests in a list ALGORITHM, VALUE, …, by algorithm. A valid
// digest is a hexadecimal number of the algorithm's length.
func digests(list ...string) map[string]string {
	length := map[string]int{"SHA256": 64, "MD5": 32}
	var out map[string]string
	for i := 0; i+1 < len(list); i += 2 {
		v := strings.ToLower(list[i+1])
		if len(v) != length[list[i]] || strings.Trim(v, "0123456789abcdef") != "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[list[i]] = v
	}
	return out
}
