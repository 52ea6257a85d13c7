import type { Route } from '../../wire-format.ts';
import { speechCall, transcriptionCall } from './audio.ts';
import { echoCall } from './echo.ts';
import { editsCall, generationsCall } from './images.ts';
import { moderationsCall } from './moderations.ts';
import { rerankCall } from './rerank.ts';
import { responsesCall } from './responses.ts';

type CallRoute = Extract<Route, { call: unknown }>;

const routes = new Map<string, CallRoute>(
  (
    [
      ['/v1/moderations', 'json', moderationsCall],
      ['/v1/images/generations', 'json', generationsCall],
      ['/v1/images/edits', 'form', editsCall],
      ['/v1/images/variations', 'form', editsCall],
      ['/v1/audio/speech', 'json', speechCall],
      ['/v1/audio/transcriptions', 'form', transcriptionCall],
      ['/v1/audio/translations', 'form', transcriptionCall],
      ['/v1/rerank', 'json', rerankCall],
      ['/v1/responses', 'json', responsesCall],
    ] as const
  ).map(([path, reads, call]) => [path, { name: `POST ${path}`, reads, call }]),
);
const echoed = /^\/v1\/(assistants|threads|vector_stores|responses|conversations)(\/|$)/;

/** The pass-through areas; those with state only return what was sent. */
export function findAreaRoute(method: string, path: string): Route | undefined {
  const route = routes.get(path);
  if (route !== undefined) return method === 'POST' ? route : { name: route.name, allow: 'POST' };
  const [, area] = echoed.exec(path) ?? [];
  return area === undefined ? undefined : { name: `/v1/${area}/**`, reads: 'anything', call: echoCall };
}
