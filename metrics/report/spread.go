package report

import (
	"math"
	"slices"
)

// A spread is the distribution of a figure over repeated runs: minimum, quartiles, median
// and maximum.
type spread struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
	Sum    float64 `json:"sum"`
}

// The number of runs from which quartiles are meaningful, and from which a difference can be
// distinguished from chance.
const (
	enoughForQuartiles = 4
	enoughRuns         = 6
)

// spreadOf returns the spread of values, which it sorts.
func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	slices.Sort(values)
	s := spread{N: len(values), Min: values[0], Max: values[len(values)-1],
		Q1: quantile(values, 0.25), Median: quantile(values, 0.5), Q3: quantile(values, 0.75)}
	for _, v := range values {
		s.Sum += v
	}
	return s
}

// quantile interpolates linearly between sorted values: type 7 of Hyndman and Fan, as in R,
// NumPy and spreadsheets.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// middle returns the range for texts: the quartiles, or the full range of few runs.
func (s spread) middle() (low, high float64) {
	if s.N < enoughForQuartiles {
		return s.Min, s.Max
	}
	return s.Q1, s.Q3
}

// manyValues is the number of values from which a normal distribution approximates the
// binomial one.
const manyValues = 200

// medianInterval returns a confidence interval of at least 95 % for the median of the distribution of
// the sorted values, by the sign test, which assumes no particular distribution. ok is false
// for fewer than six values.
func medianInterval(sorted []float64) (low, high float64, ok bool) {
	n := len(sorted)
	if n < enoughRuns {
		return 0, 0, false
	}
	// The k-th from either end, with the largest k for which P(X < k) is at most 2.5 %: X ~
	// Binomial(n, 1/2).
	k := int((float64(n) - 1.96*math.Sqrt(float64(n))) / 2)
	if n < manyValues {
		k = 0
		for p, sum := math.Exp2(-float64(n)), 0.0; sum+p <= 0.025; k++ {
			sum += p
			p *= float64(n-k) / float64(k+1)
		}
	}
	return sorted[k-1], sorted[n-k], true
}

// apart reports whether two medians differ with a confidence of about 95 %: the notches of
// their box plots (McGill, Tukey and Larsen) do not overlap. It uses logarithms, because
// times are skewed.
func (s spread) apart(o spread) bool {
	low, high := s.notch()
	olow, ohigh := o.notch()
	return high < olow || ohigh < low
}

func (s spread) notch() (low, high float64) {
	middle := math.Log(s.Median)
	wide := 1.57 * (math.Log(s.Q3) - math.Log(s.Q1)) / math.Sqrt(float64(s.N))
	return middle - wide, middle + wide
}
