import { AsyncLocalStorage } from 'node:async_hooks';

/** The workspace whose rows the statements of a request see; null: those of all workspaces. */
type Binding = { workspaceId: string | null };

const bindings = new AsyncLocalStorage<Binding>();

/** Runs the handler of a request with all statements through a workspace database bound to this workspace. */
export const runForWorkspace = <Result>(workspaceId: string, work: () => Result): Result =>
  bindings.run({ workspaceId }, work);

/**
 * Runs work whose statements see the rows of all workspaces, such as finding a workspace by its slug. Each use is an
 * exception from isolation and must check which data it answers with.
 */
export const asSystem = <Result>(work: () => Result): Result => bindings.run({ workspaceId: null }, work);

/**
 * Binds the rest of the request to another workspace, or to none for a caller with an organisation key. The caller's
 * right to that must have been checked. Has no effect outside of requests.
 */
export function rebind(workspaceId: string | null): void {
  const binding = bindings.getStore();
  if (binding !== undefined) binding.workspaceId = workspaceId;
}

/**
 * The workspace that the current request is bound to; null for all. Throws outside of a request, because no workspace
 * is known there.
 */
export function boundWorkspace(): string | null {
  const binding = bindings.getStore();
  if (binding === undefined) {
    throw new Error('a statement of a workspace database ran outside a request: use runForWorkspace or asSystem');
  }
  return binding.workspaceId;
}
