import type { ProfileFigures } from './profile-bench.ts';
import { fixed, whole, type Row } from './report.ts';

/** Files and packages below this share are added up. */
const shownShare = 0.005;

/** For each unit, where its processor time goes: first by group, and then by file or package within two of them. */
export const profileRows = (profiles: readonly ProfileFigures[]): Row[] => profiles.flatMap(rowsForUnit);

function rowsForUnit({ unit, units, cpuUs, parts }: ProfileFigures): Row[] {
  const section = `µs of ${unit} (${whole(units)} of them)`;
  const total = sum(parts);
  const row = (figure: string, us: number): Row => ({
    section,
    figure,
    value: `${fixed(us, 2).padStart(8)}  ${fixed((us / total) * 100, 1).padStart(5)} %`,
  });
  const groups = [...Map.groupBy(parts, ({ part }) => part.group)].map(([group, each]) => ({
    group,
    each,
    us: sum(each),
  }));
  return [
    { section, figure: 'processor time of all threads, while profiled', value: fixed(cpuUs, 2).padStart(8) },
    row('main thread', total),
    ...groups
      .toSorted((left, right) => right.us - left.us)
      .flatMap(({ group, each, us }) => [row(`  ${group}`, us), ...rowsForNames(each, total, row)]),
  ];
}

type Sum = ProfileFigures['parts'][number];

function rowsForNames(parts: readonly Sum[], total: number, row: (figure: string, us: number) => Row): Row[] {
  const named = parts.filter(({ part }) => part.name !== null);
  const shown = named.filter(({ us }) => us / total >= shownShare);
  const others = named.filter((each) => !shown.includes(each));
  return [
    ...shown.map(({ part, us }) => row(`    ${part.name}`, us)),
    ...(others.length === 0 ? [] : [row(`    ${others.length} others`, sum(others))]),
  ];
}

const sum = (parts: readonly Sum[]): number => parts.reduce((total, { us }) => total + us, 0);
