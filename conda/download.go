package conda

import (
	"context"
	"fmt"

	"hpcc/conda/exports"
	"hpcc/conda/fetch"
	"hpcc/conda/layer"
	"hpcc/conda/pip"
	"hpcc/store"
)

// A Download is an archive that installing a plan downloads.
type Download struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Build   string `json:"build,omitempty"` // conda packages only
	URL     string `json:"url"`             // without credentials
	Size    int64  `json:"size"`            // bytes; 0 if unknown
	Cached  bool   `json:"cached"`          // already in the store
}

// Downloads lists the archives that Layers would download. It chooses wheels as Layers does,
// except that it infers the distributions of conda packages from names and dependencies, not
// from their files. notes says which parts of the list may change.
func (p *Plan) Downloads(ctx context.Context, s *store.Store, o Options) (list []Download, notes []string, err error) {
	dir := layer.Archives(s)
	for _, r := range p.pkgs {
		_, _, cached := r.Stat(dir)
		list = append(list, Download{r.Name, r.Version, r.Build, fetch.Bare(r.URL), r.Size, cached})
	}
	e := p.export
	if len(e.Pip) == 0 {
		return list, nil, nil
	}
	t, err := p.pipTarget()
	if err == nil {
		err = linkPip(t, o)
	}
	if err != nil {
		return nil, nil, &exports.LineError{File: e.File, Line: e.Pip[0].Line, Err: err}
	}
	po := pipOptions(e, o)
	if po.Build != nil {
		// Without a build, a source package's requirements are known only if its metadata is static.
		po.Build.Step = nil
	}
	wheels, err := pip.Resolve(ctx, s, e.Pip, *t, po)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range wheels.Archives() {
		_, _, cached := r.Stat(dir)
		list = append(list, Download{wheels.Wheels[i].Name, wheels.Wheels[i].Version, "", fetch.Bare(r.URL), r.Size, cached})
	}
	return list, append(wheels.Notes, fmt.Sprintf("%s: the list of wheels may change when the conda packages are downloaded", e.File)), nil
}
