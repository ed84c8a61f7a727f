package conda

import "testing"

func TestTmp(t *testing.T) {
	for _, c := range [][]string{{"linux-64", "pytorch"}, {"linux-64", "tensorflow"}, {"linux-64", "anaconda"}, {"linux-ppc64le", "dask", "numba"}, {"linux-ppc64le", "mkl"}, {"linux-ppc64le", "python=3.6", "pandas>=1.3"}, {"linux-ppc64le", "numpy=1.26", "scipy"}, {"linux-64", "python=3.9", "scipy=1.5", "numpy=1.20"}, {"linux-64", "tensorflow", "mkl", "python=3.6"}} {
		p := &problem{subdir: c[0], channels: []string{"https://repo.anaconda.com/pkgs/main"}, pip: true, wants: wishes(t, c[1:]...), virtual: machine()}
		_, err := p.solve(t.Context(), main2021(t, c[0]))
		t.Logf("%v", err)
	}
}
