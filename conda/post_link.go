package conda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/input"
	"hpcc/conda/program"
)

// postLinkDriver runs the scripts of packages one after the other, as conda does
// (CEP 34): with the variables of the package, in the activated environment, with the shell
// that they are written for where there is one. Its arguments are the packages: a
// name, a version, a build number. What a script wants to be read it writes to
// .messages.txt.
const postLinkDriver = `shell=sh
if command -v bash >/dev/null 2>&1; then shell=bash; fi
while [ $# -gt 0 ]; do
	export PKG_NAME="$1" PKG_VERSION="$2" PKG_BUILDNUM="$3"
	shift 3
	script="bin/.$PKG_NAME-post-link.sh"
	echo "$script of $PKG_NAME $PKG_VERSION"
	"$shell" "$PREFIX/$script"
	status=$?
	if [ -f "$PREFIX/.messages.txt" ]; then
		cat "$PREFIX/.messages.txt"
		rm -f "$PREFIX/.messages.txt"
	fi
	if [ "$status" -ne 0 ]; then
		echo "` + postLinkFailed + `$script of $PKG_NAME $PKG_VERSION ended with status $status"
		exit "$status"
	fi
done`

// postLinkFailed begins the driver's last line about a script that failed.
const postLinkFailed = "hpcc: "

// postLink runs the post-link scripts of all packages, each after those of the
// packages that its own needs. What they change is a layer, nil for nothing. Where
// nothing can run they are told of.
func (in *installer) postLink(ctx context.Context, o Options, below []v1.Layer) (v1.Layer, error) {
	var words, scripts []string
	for _, p := range in.packages {
		if s := p.linkScript("pre"); in.isScript(s) {
			in.tell("%s of %s is not run: conda alone runs such scripts, where it has the package unpacked, and will give them up", s, p.rec.Name)
		}
		if s := p.linkScript("post"); in.isScript(s) {
			words = append(words, p.rec.Name, p.rec.Version, strconv.Itoa(p.meta.index.BuildNumber))
			scripts = append(scripts, fmt.Sprintf("%s of %s", s, p.rec.Name))
		}
	}
	why := o.NoStep
	if o.Step != nil && len(scripts) > 0 {
		l, err := o.Step(ctx, program.Step{
			Text: fmt.Sprintf("run post-link scripts of %d packages", len(scripts)), Below: below,
			Args: program.Activated(append([]string{"/bin/sh", "-c", postLinkDriver, "hpcc"}, words...)...),
			Env:  append(append([]string{"PREFIX=" + in.plan.Prefix, "ROOT_PREFIX=" + in.plan.Prefix}, in.env.Env...), program.Env...),
			Path: in.env.Path, Dir: in.plan.Prefix + "/bin",
		})
		if !errors.Is(err, program.ErrCannotRun) {
			return l, postLinkError(err)
		}
		why = err.Error()
	}
	if why == "" {
		why = "it would change the image in ways that nothing verifies"
	}
	for _, s := range scripts {
		in.tell("%s is not run: %s", s, why)
	}
	return nil, nil
}

// linkScript is where a package has a script that is run before or after it is
// linked, below the prefix.
func (p *pkg) linkScript(when string) string { return "bin/." + p.rec.Name + "-" + when + "-link.sh" }

func (in *installer) isScript(path string) bool {
	k := in.kinds[path]
	return k == regularFile || k == symbolicLink
}

// postLinkError says which script failed.
func postLinkError(err error) error {
	if err == nil {
		return nil
	}
	var failed *program.Error
	if errors.As(err, &failed) {
		log := bytes.TrimRight(failed.Log, "\n")
		if what, ok := strings.CutPrefix(string(log[bytes.LastIndexByte(log, '\n')+1:]), postLinkFailed); ok {
			if program.Offline().Match(log) {
				return &program.Error{Err: fmt.Errorf("%s: it wants to download something, and has no network; --no-run leaves such scripts out, and RUN in a Dockerfile can do it", input.Text(what)), Log: failed.Log}
			}
			return &program.Error{Err: fmt.Errorf("%s; --no-run leaves such scripts out", input.Text(what)), Log: failed.Log}
		}
	}
	return fmt.Errorf("running the post-link scripts: %w", err)
}
