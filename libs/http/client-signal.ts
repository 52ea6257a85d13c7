import type { ServerResponse } from 'node:http';

/**
 * A controller that aborts when the client leaves before its answer is complete, for calls made on its behalf.
 * It must not keep a provider working for nobody.
 */
export function abortWhenClientLeaves(response: ServerResponse): AbortController {
  const controller = new AbortController();
  const leave = (): void => {
    if (!response.writableFinished) controller.abort(new Error('the client left'));
  };
  if (response.destroyed) leave();
  else response.once('close', leave);
  return controller;
}
