import { useEffect, useRef } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';

export type Series = { label: string; values: (number | null)[]; color: `--${string}`; asBars?: boolean };

const themeColor = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A graph over time. `times` are Unix seconds. `summary` describes the graph in words for screen readers. uPlot draws 10,000
 * points in a millisecond and is 20 KB.
 */
export function Chart({
  times,
  series,
  format,
  summary,
  height = 170,
}: {
  times: number[];
  series: Series[];
  format: (value: number) => string;
  summary: string;
  height?: number;
}) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = series.map(({ label }) => label).join();
  const formatter = useRef(format);
  formatter.current = format;

  useEffect(() => {
    const element = host.current;
    if (element === null) return;
    const make = (): void => {
      plot.current?.destroy();
      const line = themeColor('--line');
      const text = themeColor('--muted');
      const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: '11px system-ui' };
      const bars = uPlot.paths.bars?.({ size: [0.72, 40] });
      plot.current = new uPlot(
        {
          width: element.clientWidth || 300,
          height,
          cursor: { y: false },
          legend: { show: false },
          axes: [
            axis,
            { ...axis, size: 62, values: (_plot, splits) => splits.map((value) => formatter.current(value)) },
          ],
          scales: { y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.08 : 1] } },
          series: [
            {},
            ...series.map(({ label, color, asBars }): uPlot.Series => {
              const stroke = themeColor(color);
              return asBars === true && bars !== undefined
                ? { label, stroke, fill: stroke, paths: bars, points: { show: false } }
                : { label, stroke, width: 2, points: { show: false } };
            }),
          ],
        },
        [times, ...series.map(({ values }) => values)],
        element,
      );
    };
    make();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth || 300, height }));
    resized.observe(element);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', make);
    const theme = new MutationObserver(make);
    theme.observe(document.documentElement, { attributeFilter: ['data-theme'] });
    return () => {
      resized.disconnect();
      theme.disconnect();
      scheme.removeEventListener('change', make);
      plot.current?.destroy();
      plot.current = null;
    };
    // The plot is created again when its lines change; their values are set below.
  }, [names, height]);

  useEffect(() => {
    plot.current?.setData([times, ...series.map(({ values }) => values)]);
  }, [times, series]);

  return (
    <figure style={{ margin: 0 }}>
      <div ref={host} className="chart" role="img" aria-label={summary} />
    </figure>
  );
}
